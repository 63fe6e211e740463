// Package peeringtest reads values of package peering for tests.
package peeringtest

import (
	"testing"

	"github.com/entente-dev/entente/peering"
)

// Decimal reads a decimal.
func Decimal(t testing.TB, s string) peering.Decimal {
	t.Helper()
	d, err := peering.ParseDecimal(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Resources reads names and amounts by turns.
func Resources(t testing.TB, kv ...string) peering.Resources {
	t.Helper()
	r, err := peering.ParseResources(pairs(kv))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Usage reads names and amounts by turns.
func Usage(t testing.TB, kv ...string) peering.Usage {
	t.Helper()
	u, err := peering.ParseUsage(pairs(kv))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func pairs(kv []string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}
