"""PCIe topology as text and JSON, and the golden one that a kind of machine should have."""
