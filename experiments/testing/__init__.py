"""Labs for other people's tests: the pytest plug-in (``plugin``) and what its fixture gives (``lab``)."""
