package client

import (
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Reason says why a call failed, as in the proto: "PEER_UNKNOWN". Package peering has the constants.
type Reason = peering.Reason

// ReasonOf returns why a call failed, and "" for nil. Where the server gave no
// reason it is the name of the gRPC code: "UNAVAILABLE".
func ReasonOf(err error) Reason { return wire.ReasonOf(err) }

// Explain returns what a server said about a failed call, for people: its
// message and, for requests that are not valid, which fields are wrong. It is ""
// for nil.
func Explain(err error) string {
	if err == nil {
		return ""
	}
	return wire.FromStatus(err).Error()
}

// Facts returns what else a server said about a failed call, by name.
func Facts(err error) map[string]string {
	if err == nil {
		return nil
	}
	return wire.FromStatus(err).Metadata
}
