package gateways

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/peering"
)

func TestGatewayAnnouncesItsFirstUsableEndpoints(t *testing.T) {
	both := []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "gw1"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeInternalIP, Address: "fd00::1"},
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
	}
	var many []string
	for i := range 10 {
		many = append(many, fmt.Sprintf("h%d.example.com", i))
	}
	for name, test := range map[string]struct {
		in   gateway
		want []string
		// problem is part of each text, in their order.
		problems []string
	}{
		"by default a node's own addresses, external ones first": {
			in: gateway{addresses: both, port: "51820"}, want: []string{"192.0.2.1:51820", "10.0.0.1:51820", "[fd00::1]:51820"},
		},
		"nothing as long as the port is not known": {in: gateway{addresses: both, named: []string{"h"}, gateways: 1}},
		"a port that is named is not waited for":   {in: gateway{addresses: both, named: []string{"h:7"}, gateways: 1}, want: []string{"h:7"}},
		"the annotation alone": {
			in:   gateway{addresses: both, port: "51820", annotation: "gw.example.com, 198.51.100.7:4500,2001:db8::7,[2001:db8::8]:5,", named: []string{"{node}.example.com"}, gateways: 2},
			want: []string{"gw.example.com:51820", "198.51.100.7:4500", "[2001:db8::7]:51820", "[2001:db8::8]:5"},
		},
		"the same one once": {in: gateway{port: "5", annotation: "h,h:5"}, want: []string{"h:5"}},
		"an annotation of which nothing is of use does not decide": {
			in:       gateway{addresses: both[1:2], port: "51820", annotation: "not a host,127.0.0.1,fe80::1,0.0.0.0:9,h:0,h:70000", gateways: 1, named: []string{"h"}},
			want:     []string{"h:51820"},
			problems: []string{`"not a host"`, "127.0.0.1", "fe80::1", "0.0.0.0", `"h:0"`, `"h:70000"`},
		},
		"of several gateways each by its name": {
			in: gateway{addresses: both, port: "51820", named: []string{"gw-{node}.example.com:4500"}, gateways: 3}, want: []string{"gw-n1.example.com:4500"},
		},
		"an endpoint of one machine is not used for several gateways": {
			in:       gateway{addresses: both[3:], port: "51820", named: []string{"gw.example.com"}, gateways: 2},
			want:     []string{"192.0.2.1:51820"},
			problems: []string{"there are 2 gateways, each with a key of its own"},
		},
		"and is for the only one": {
			in: gateway{addresses: both[3:], port: "51820", named: []string{"gw.example.com"}, gateways: 1}, want: []string{"gw.example.com:51820"},
		},
		"as many as a peer takes, and the rest is reported": {
			in:       gateway{port: "1", annotation: strings.Join(many, ",")},
			want:     []string{"h0.example.com:1", "h1.example.com:1", "h2.example.com:1", "h3.example.com:1", "h4.example.com:1", "h5.example.com:1", "h6.example.com:1", "h7.example.com:1"},
			problems: []string{"has 10 endpoints, of which 8 are announced to peers: the last 2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.in.node = "n1"
			got, problems := test.in.announce()
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(problems) != len(test.problems) {
				t.Fatalf("problems %q, want %d", problems, len(test.problems))
			}
			for i, p := range test.problems {
				if !strings.Contains(problems[i], p) {
					t.Errorf("problem %q lacks %q", problems[i], p)
				}
			}
		})
	}
}

// Whatever an annotation contains, the peer that gets it can read it.
func FuzzAnnouncedEndpointsAreTakenByPeers(f *testing.F) {
	f.Add("gw.example.com,198.51.100.7:4500", "{node}")
	f.Add("[::1%eth0]:1,[", "a]:2")
	f.Fuzz(func(t *testing.T, annotation, named string) {
		got, _ := gateway{node: "n1", annotation: annotation, named: []string{named}, gateways: 1, port: "51820"}.announce()
		if err := peering.CheckEndpoints(got); err != nil {
			t.Errorf("%q and %q: %v", annotation, named, err)
		}
	})
}
