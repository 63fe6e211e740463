package wire

import "github.com/entente-dev/entente/peering"

// newer is the error of a value that has to be understood and is not, as only a
// later revision has it.
func newer(field, value string) error {
	return peering.Errorf(peering.ReasonProtocolUnsupported, "%s is %q, which an agent of protocol revision %d does not know: upgrade that agent, or use what both know",
		field, peering.Text(value, peering.MaxNameLen), peering.Protocol)
}
