"""Types that several rooms of the host program share."""
