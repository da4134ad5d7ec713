"""Tables of anything beside images: which column names the images is told by the files that are there."""
