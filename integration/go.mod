module github.com/entente-dev/entente/integration

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/mdlayher/netlink v1.7.3-0.20250113171957-fbb4dce95f42
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.48.0
	k8s.io/client-go v0.37.2
)
