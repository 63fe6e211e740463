module github.com/entente-dev/entente/tools/picture

go 1.26.0
