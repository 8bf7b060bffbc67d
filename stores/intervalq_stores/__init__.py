"""The stores that come with intervalq; `intervalq.store.open_store` finds each by its URL's scheme."""
