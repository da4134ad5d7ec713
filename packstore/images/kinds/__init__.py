"""A class for each kind of image file. :data:`packstore.images.sniff.KINDS` lists them."""
