"""``python -m gdsdeploy``."""

from gdsdeploy.cli import main

main()
