package admin

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
)

func officeParameters() *ententev1.NetworkParameters {
	return &ententev1.NetworkParameters{
		ClusterId: strings.Repeat("a", 32), DisplayName: "office", ExchangeKey: bytes.Repeat([]byte{7}, 32),
		Gateways: []*ententev1.InBandGateway{{Name: "gw1", PublicKey: bytes.Repeat([]byte{1}, 32), Endpoints: []string{"203.0.113.7:51820"}}, {Name: "gw2", PublicKey: bytes.Repeat([]byte{2}, 32)}},
	}
}

func TestPrintedParametersAreAccepted(t *testing.T) {
	parameters, err := parametersFrom(officeParameters())
	if err != nil {
		t.Fatal(err)
	}
	var given inband.Parameters
	a := newAdminTestWith(t, func(cfg *Config) {
		cfg.NetworkParameters = func(context.Context) (inband.Parameters, error) { return parameters, nil }
		cfg.ConnectInBand = func(_ context.Context, p inband.Parameters, name string) (string, error) {
			given = p
			if name == "taken" {
				return "", peering.Errorf(peering.ReasonPeerNameTaken, "another cluster is called that")
			}
			return "office", nil
		}
	}, peerObject("office", strings.Repeat("a", 32)))
	c := a.alice(t)
	announced, err := c.GetNetworkParameters(t.Context(), &ententev1.GetNetworkParametersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(officeParameters(), announced.GetParameters(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	resp, err := c.ConnectInBand(t.Context(), &ententev1.ConnectInBandRequest{Parameters: announced.GetParameters()})
	if err != nil || resp.GetPeer().GetName() != "peers/office" {
		t.Fatalf("%v, %v", resp, err)
	}
	if diff := cmp.Diff(parameters, given, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-announced +given)\n%s", diff)
	}
	if _, err := c.ConnectInBand(t.Context(), &ententev1.ConnectInBandRequest{Parameters: officeParameters(), Name: "taken"}); wire.ReasonOf(err) != peering.ReasonPeerNameTaken {
		t.Errorf("a name that is taken: %v", err)
	}
	parameters.Gateways = nil
	if _, err := c.GetNetworkParameters(t.Context(), &ententev1.GetNetworkParametersRequest{}); wire.ReasonOf(err) != peering.ReasonNoEndpoint {
		t.Errorf("without a gateway: %v", err)
	}
}

func TestMalformedParametersAreRefused(t *testing.T) {
	a := newAdminTest(t)
	c := a.alice(t)
	for name, edit := range map[string]func(*ententev1.NetworkParameters){
		"its own":                  func(p *ententev1.NetworkParameters) { p.ClusterId = string(a.agent.ID()) },
		"no ID":                    func(p *ententev1.NetworkParameters) { p.ClusterId = "office" },
		"a name of several words":  func(p *ententev1.NetworkParameters) { p.DisplayName = "the office" },
		"no key":                   func(p *ententev1.NetworkParameters) { p.ExchangeKey = nil },
		"a key of zeros":           func(p *ententev1.NetworkParameters) { p.ExchangeKey = make([]byte, 32) },
		"no gateway":               func(p *ententev1.NetworkParameters) { p.Gateways = nil },
		"too many gateways":        func(p *ententev1.NetworkParameters) { p.Gateways = make([]*ententev1.InBandGateway, 17) },
		"a gateway twice":          func(p *ententev1.NetworkParameters) { p.Gateways = append(p.Gateways, p.GetGateways()[0]) },
		"a gateway's key is short": func(p *ententev1.NetworkParameters) { p.Gateways[0].PublicKey = []byte{1} },
		"an endpoint is a sentence": func(p *ententev1.NetworkParameters) {
			p.Gateways[0].Endpoints = []string{"over there"}
		},
	} {
		p := proto.CloneOf(officeParameters())
		edit(p)
		want := peering.ReasonRequestInvalid
		if name == "its own" {
			want = peering.ReasonPeerIsSelf
		}
		if _, err := c.ConnectInBand(t.Context(), &ententev1.ConnectInBandRequest{Parameters: p}); wire.ReasonOf(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if _, err := c.ConnectInBand(t.Context(), &ententev1.ConnectInBandRequest{}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("without parameters: %v", err)
	}
}
