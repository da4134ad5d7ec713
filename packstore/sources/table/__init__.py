"""Tables beside images: the files that exist decide which column names the images."""
