"""What the pages of the console show, as records. Nothing here knows of HTML."""
