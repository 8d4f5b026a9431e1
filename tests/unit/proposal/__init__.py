"""Tests of gdsdeploy/proposal."""
