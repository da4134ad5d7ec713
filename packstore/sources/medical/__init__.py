"""Formats of medicine: DICOM, NIfTI."""
