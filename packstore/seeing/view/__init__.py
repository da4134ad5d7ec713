"""``packstore view``: a local page in the browser that shows a store's records. It only reads."""
