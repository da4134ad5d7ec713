"""Names of reading and writing that other rooms use."""

from packstore.stores.format import FileWriter as FileWriter
from packstore.stores.format import encode_manifest as encode_manifest
from packstore.stores.format import parse_manifest as parse_manifest
from packstore.stores.format import unreadable_error as unreadable_error
from packstore.stores.parts import Problem as Problem
from packstore.stores.parts import as_image_array as as_image_array
from packstore.stores.records import Records
from packstore.stores.records import disk_bytes as disk_bytes

Reader = Records
