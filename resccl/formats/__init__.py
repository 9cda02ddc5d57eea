"""Schedules that others wrote: MSCCL XML, MSCCL++ JSON and TE-CCL JSON in, MSCCL XML out.

    from resccl.formats import load
    imported = load("allreduce.xml")     # .plan or .algorithm, .meta, .notes

All that reads files is in files.py; everything else works on bytes. Importers check what they read and refuse with the
place at fault; whether a schedule is right is the verifier's business.
"""

from resccl.formats.common import NO_LIMIT, FormatError, Imported
from resccl.formats.files import Folder, load, load_bytes, load_folder
from resccl.formats.msccl_export import export_msccl_xml
from resccl.formats.msccl_plan import import_msccl_xml
from resccl.formats.mscclpp_plan import import_mscclpp_json
from resccl.formats.raise_algorithm import raise_algorithm
from resccl.formats.teccl_json import import_teccl_json

__all__ = [
    "NO_LIMIT",
    "Folder",
    "FormatError",
    "Imported",
    "export_msccl_xml",
    "import_msccl_xml",
    "import_mscclpp_json",
    "import_teccl_json",
    "load",
    "load_bytes",
    "load_folder",
    "raise_algorithm",
]
