"""What a validation found, as text, JSON, JUnit or HTML: modules make a text of a report, output.py its file."""
