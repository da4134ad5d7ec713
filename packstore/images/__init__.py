"""Images and their bytes: recognise, decode, resize, encode. Imports core."""
