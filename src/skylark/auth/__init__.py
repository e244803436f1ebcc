"""Who is calling and what may they do: signatures now, users and access lists to come."""
