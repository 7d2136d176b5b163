module horarium

go 1.23
