package inband

import (
	"strings"
	"testing"

	"github.com/entente-dev/entente/peering"
)

func exchange(t *testing.T, id peering.ClusterID, secret string) *Exchange {
	t.Helper()
	e, err := NewExchange(id, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestOnlyTheTwoSidesDeriveTheKey(t *testing.T) {
	t.Parallel()
	a, b, c := exchange(t, "a", "one"), exchange(t, "b", "two"), exchange(t, "c", "three")
	derive := func(of *Exchange, peer peering.ClusterID, theirs [32]byte) [32]byte {
		key, err := of.PresharedKey(peer, theirs)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	key := derive(a, "b", b.Public())
	if key != derive(b, "a", a.Public()) || key == ([32]byte{}) {
		t.Fatal("the two sides have different keys")
	}
	if exchange(t, "a", "one").Public() != a.Public() {
		t.Error("the public key is another one after a restart")
	}
	for name, other := range map[string][32]byte{
		"of another pair":                       derive(a, "c", c.Public()),
		"of a cluster that copies a public key": derive(a, "c", b.Public()),
		"of another secret":                     derive(c, "b", b.Public()),
		"of the same secret and pair":           derive(exchange(t, "c", "one"), "b", b.Public()),
	} {
		if other == key {
			t.Errorf("the key %s is the same", name)
		}
	}
	if _, err := a.PresharedKey("b", [32]byte{}); err == nil {
		t.Error("a key of low order was taken: everybody knows what it leads to")
	}
}

func TestParametersThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	id := peering.ClusterIDOfSPKI([]byte("another cluster"))
	good := func() Parameters {
		return Parameters{ID: id, Name: "office", ExchangeKey: [32]byte{1}, Gateways: []peering.Gateway{
			{Name: "gw1", PublicKey: [32]byte{1}, Endpoints: []string{"192.0.2.1:51820"}}, {Name: "gw2", PublicKey: [32]byte{2}},
		}}
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Parameters)
		says   string
	}{
		"no cluster":              {func(p *Parameters) { p.ID = "office" }, "ID"},
		"no exchange key":         {func(p *Parameters) { p.ExchangeKey = [32]byte{} }, "exchange key"},
		"no gateway":              {func(p *Parameters) { p.Gateways = nil }, "no gateways"},
		"too many gateways":       {func(p *Parameters) { p.Gateways = make([]peering.Gateway, peering.MaxInBandGateways+1) }, "more than"},
		"a gateway twice":         {func(p *Parameters) { p.Gateways[1].Name = "gw1" }, "twice"},
		"a key twice":             {func(p *Parameters) { p.Gateways[1].PublicKey = [32]byte{1} }, "twice"},
		"a gateway unnamed":       {func(p *Parameters) { p.Gateways[0].Name = "" }, "characters"},
		"a long name":             {func(p *Parameters) { p.Gateways[0].Name = strings.Repeat("x", peering.MaxNodeNameLen+1) }, "characters"},
		"a gateway without a key": {func(p *Parameters) { p.Gateways[0].PublicKey = [32]byte{} }, "public key"},
		"no endpoint":             {func(p *Parameters) { p.Gateways[0].Endpoints = []string{"192.0.2.1"} }, "gw1"},
		"too many endpoints":      {func(p *Parameters) { p.Gateways[0].Endpoints = make([]string, peering.MaxEndpoints+1) }, "more than"},
	} {
		p := good()
		c.change(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
