// The protos that ours import, taken from the Go modules that ship them, so that
// go.sum pins them. Nothing is built of this module, so it is not kept tidy.
module github.com/entente-dev/entente/tools/proto

go 1.26.0

require (
	github.com/bufbuild/protovalidate v1.2.2
	github.com/grpc-ecosystem/grpc-gateway v1.16.0
)
