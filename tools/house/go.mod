module github.com/entente-dev/entente/tools/house

go 1.26.0
