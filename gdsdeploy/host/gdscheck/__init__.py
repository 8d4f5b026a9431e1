"""What NVIDIA's gdscheck says, of every release from 1.4 to 1.20, as data.

``reader.parse`` reads one run, ``reader.parse_log`` the same rows from a libcufile log, and ``reader.read_recording`` a
file of either.  ``document.document`` makes the JSON object of it.  ``live`` makes the report on a host that has
libcufile alone.
"""
