# What this project is worked on with. `make help` lists it.
.PHONY: help schemas

help: ## List what can be made
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

schemas: ## Write the JSON Schemas under schemas/ from the types
	cargo run --quiet -- schema --out schemas
