"""The stores that are part of intervalq; `intervalq.store.open_store` finds each by its URL's scheme."""
