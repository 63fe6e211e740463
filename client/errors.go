package client

import (
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Reason is why a call failed, as in the proto: "PEER_UNKNOWN". Package peering has the constants.
type Reason = peering.Reason

// ReasonOf returns why a call failed, and "" for nil. Without a reason of the server it is the
// name of the gRPC code: "UNAVAILABLE".
func ReasonOf(err error) Reason { return wire.ReasonOf(err) }

// Explain returns a server's error about a failed call, for people: its message and, for invalid
// requests, which fields are wrong. It is "" for nil.
func Explain(err error) string {
	if err == nil {
		return ""
	}
	return wire.FromStatus(err).Error()
}

// Facts returns the metadata of a server's error about a failed call.
func Facts(err error) map[string]string {
	if err == nil {
		return nil
	}
	return wire.FromStatus(err).Metadata
}
