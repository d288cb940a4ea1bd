"""Several clusters read as one: what a name means in all of them. Pure."""
