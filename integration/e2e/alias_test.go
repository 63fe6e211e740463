package e2e

import (
	"testing"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestAliasKeepsTheHostPart(t *testing.T) {
	peer := &v1alpha1.ForeignCluster{Status: v1alpha1.ForeignClusterStatus{Aliases: []v1alpha1.PrefixAlias{
		{Prefix: "10.200.0.0/16", Alias: "10.241.0.0/16"},
		{Prefix: "10.4.32.0/19", Alias: "10.250.64.0/19"},
	}}}
	for address, want := range map[string]string{
		"10.200.7.9":   "10.241.7.9",
		"10.4.33.1":    "10.250.65.1",
		"10.4.63.255":  "10.250.95.255",
		"192.168.1.1":  "",
		"not an addr.": "",
	} {
		got, err := Alias(peer, address)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Alias(%s) = %q, %v; want %q", address, got, err, want)
		}
	}
}
