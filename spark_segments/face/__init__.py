"""The public face: `LogDir` and `Topic`. It joins the core and the add-ons, and only ways to use it stand above it."""
