"""Files of records, as frameworks write them: one record after the other, a sample each."""
