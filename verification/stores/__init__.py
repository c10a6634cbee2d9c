"""The life of a topic on stores of others: SeaweedFS, Azure's emulator, any address, and mounts without some calls."""
