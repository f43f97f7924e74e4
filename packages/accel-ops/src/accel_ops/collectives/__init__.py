"""Operations that all ranks call together."""
