package wire

import "github.com/entente-dev/entente/peering"

// newer is the error for a value that has to be understood and that only a later revision has.
func newer(field, value string) error {
	return peering.Errorf(peering.ReasonProtocolUnsupported, "%s is %q, which an agent of protocol revision %d does not know: upgrade that agent, or use what both know",
		field, peering.Text(value, peering.MaxNameLen), peering.Protocol)
}
