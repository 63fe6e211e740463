package format

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func in(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }

// is makes a condition of its type, status and reason.
func is(kind, status, reason string) *ententev1.Condition {
	return &ententev1.Condition{Type: kind, Status: status, Reason: reason}
}

func TestTimesAreForPeople(t *testing.T) {
	t.Parallel()
	span := func(d time.Duration) string { return Span(durationpb.New(d), "none") }
	for name, tc := range map[string]struct{ got, want string }{
		"no end":       {Until(now, nil), "-"},
		"over now":     {Until(now, in(0)), "over"},
		"soon":         {Until(now, in(time.Minute)), "60s"},
		"no beginning": {Since(now, nil), "-"},
		"long ago":     {Since(now, in(-48*time.Hour)), "2d"},
		"no span":      {Span(nil, "none"), "none"},
		"a day":        {span(24 * time.Hour), "24h"},
		"minutes":      {span(10 * time.Minute), "10m"},
		"both":         {span(time.Hour + 10*time.Minute), "1h10m"},
		"with seconds": {span(time.Hour + time.Second), "1h0m1s"},
		"seconds":      {span(30 * time.Second), "30s"},
		"zero":         {span(0), "0s"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %q, want %q", name, tc.got, tc.want)
		}
	}
}

func TestAmountsAreTheSameHoweverTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"0.5", "500m", true},
		{"8Gi", "8192Mi", true},
		{"1Gi", "1073741824", true},
		{"1Gi", "1G", false},
		{"", "", true},
		{"", "0", false},
		{"much", "much", true},
		{"much", "1", false},
	} {
		if got := SameAmount(tc.a, tc.b); got != tc.want {
			t.Errorf("%q and %q: got %t", tc.a, tc.b, got)
		}
	}
}

func TestAmountsAndPrices(t *testing.T) {
	t.Parallel()
	amounts := &ententev1.ResourceList{Amounts: map[string]string{"nvidia.com/gpu": "1", "pods": "110", "memory": "8Gi", "cpu": "4", "a.b/c": "2"}}
	pods := &ententev1.ResourceList{Amounts: map[string]string{"pods": "110"}}
	eur := func(perHour map[string]string) *ententev1.PriceList {
		return &ententev1.PriceList{Currency: "EUR", PerHour: perHour}
	}
	contract := func(p *ententev1.PriceList, resources map[string]string) *ententev1.Contract {
		return &ententev1.Contract{Price: p, Resources: &ententev1.ResourceList{Amounts: resources}}
	}
	for name, tc := range map[string]struct{ got, want string }{
		"the usual ones first":      {Amounts(amounts), "cpu 4, memory 8Gi, pods 110, a.b/c 2, nvidia.com/gpu 1"},
		"none":                      {Amounts(nil), "nothing"},
		"in brief":                  {Briefly(amounts), "4 CPU, 8Gi, +2"},
		"pods alone":                {Briefly(pods), "pods 110"},
		"asked for all":             {AskedBriefly(nil), "what the policy gives"},
		"free":                      {Prices(eur(nil)), "free"},
		"bytes are by the GiB":      {Prices(eur(map[string]string{"memory": "0.005", "cpu": "0.02"})), "EUR an hour: cpu 0.02, memory 0.005 a GiB"},
		"a contract's cost":         {Cost(contract(eur(map[string]string{"cpu": "0.02", "memory": "0.005"}), map[string]string{"cpu": "4", "memory": "8Gi"})), "EUR 0.12 an hour"},
		"a free contract":           {Cost(contract(nil, map[string]string{"cpu": "4"})), "free"},
		"a price that is malformed": {Cost(contract(eur(map[string]string{"cpu": "x"}), nil)), "EUR an hour: cpu x"},
		"no money":                  {Money(nil, "any"), "any"},
		"labels in order":           {Pairs(map[string]string{"b": "2", "a": "1"}), "a=1,b=2"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %q, want %q", name, tc.got, tc.want)
		}
	}
}

func TestUsageIsSummedByRoleAndCurrency(t *testing.T) {
	t.Parallel()
	of := func(role, currency, amount string) *ententev1.Usage {
		return &ententev1.Usage{Role: role, Amount: &ententev1.Money{Currency: currency, Amount: amount}}
	}
	for name, tc := range map[string]struct {
		usage []*ententev1.Usage
		want  string
	}{
		"nothing":                {nil, ""},
		"not stated yet":         {[]*ententev1.Usage{{Role: "Consumer"}}, ""},
		"two periods":            {[]*ententev1.Usage{of("Consumer", "EUR", "0.1"), of("Consumer", "EUR", "0.2")}, "this cluster owes EUR 0.3"},
		"two currencies":         {[]*ententev1.Usage{of("Consumer", "USD", "1"), of("Consumer", "EUR", "2")}, "this cluster owes EUR 2 and USD 1"},
		"both ways":              {[]*ententev1.Usage{of("Provider", "EUR", "5"), of("Consumer", "EUR", "2")}, "this cluster owes EUR 2; this cluster is owed EUR 5"},
		"malformed and unknown":  {[]*ententev1.Usage{of("Consumer", "EUR", "x"), of("Broker", "EUR", "1")}, ""},
		"more than can be shown": {slices.Repeat([]*ententev1.Usage{of("Consumer", "EUR", "999999999")}, 20), "the sum is too large to show"},
	} {
		if got := Totals(tc.usage); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	for want, u := range map[string]*ententev1.Usage{
		"draft": {State: "Draft"}, "running": {}, "counted": {Sequence: 1}, "stated": {Sequence: 1, Stated: map[string]string{"cpu": "1"}},
	} {
		if got := UsageState(u); got != want {
			t.Errorf("%v is %s, want %s", u, got, want)
		}
	}
}

// A hop that should be up and is not is a problem; one that was not asked for is not.
func TestProblemsAreTheHopsThatShouldBeUp(t *testing.T) {
	t.Parallel()
	active, closed := &ententev1.Contract{Phase: "Active"}, &ententev1.Contract{Phase: "Closed"}
	trusted, up := is("Trusted", "True", ""), is("Connected", "True", "")
	for name, tc := range map[string]struct {
		peer *ententev1.Peer
		want []string
	}{
		"only found":                      {&ententev1.Peer{Conditions: []*ententev1.Condition{is("Trusted", "False", "Discovered")}}, nil},
		"not trusted, after a contract":   {&ententev1.Peer{Contracts: []*ententev1.Contract{closed}, Conditions: []*ententev1.Condition{is("Trusted", "False", "X")}}, nil},
		"not trusted, with a contract":    {&ententev1.Peer{Contracts: []*ententev1.Contract{active}, Conditions: []*ententev1.Condition{is("Trusted", "False", "X"), up, is("Network", "False", "TunnelNotRequired"), is("Offloading", "True", "")}}, []string{"Trusted is False: X"}},
		"trusted, nothing agreed":         {&ententev1.Peer{Conditions: []*ententev1.Condition{trusted, up, is("Network", "False", "Probing"), is("Offloading", "False", "NoContract")}}, nil},
		"away":                            {&ententev1.Peer{Conditions: []*ententev1.Condition{trusted, is("Connected", "False", "NoSession")}}, []string{"Connected is False: NoSession"}},
		"a certificate that expires":      {&ententev1.Peer{Conditions: []*ententev1.Condition{trusted, up, is("CertificateValid", "False", "Expires")}}, []string{"CertificateValid is False: Expires"}},
		"the tunnel and what needs it":    {&ententev1.Peer{Contracts: []*ententev1.Contract{active}, Conditions: []*ententev1.Condition{trusted, up, is("Network", "False", "ProbesLost"), is("Offloading", "True", "")}}, []string{"Network is False: ProbesLost"}},
		"a tunnel that was not asked for": {&ententev1.Peer{Contracts: []*ententev1.Contract{active}, Conditions: []*ententev1.Condition{trusted, up, is("Network", "False", "TunnelNotRequired"), is("Offloading", "True", "")}}, nil},
		"an agent that says nothing more": {&ententev1.Peer{Contracts: []*ententev1.Contract{active}, Conditions: []*ententev1.Condition{trusted, up}}, []string{"Network is Unknown", "Offloading is Unknown"}},
	} {
		tc.peer.Name = "peers/milan"
		var want []string
		for _, line := range tc.want {
			want = append(want, "peer milan: "+line)
		}
		// A problem that the agent reports in the same words is listed once.
		got := Problems(&ententev1.GetInfoResponse{Problems: want}, []*ententev1.Peer{tc.peer})
		if !slices.Equal(got, want) || Worst(tc.peer) != strings.Join(tc.want[:min(1, len(tc.want))], "") {
			t.Errorf("%s: got %q, worst %q, want %q", name, got, Worst(tc.peer), want)
		}
	}
}

func TestStatesOfPeers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		peer                       *ententev1.Peer
		trust, offloading, network string
		hint                       bool
	}{
		"found":       {&ententev1.Peer{Source: "LAN", Conditions: []*ententev1.Condition{is("Trusted", "False", "Discovered")}}, "False", "Unknown", "Unknown", true},
		"introduced":  {&ententev1.Peer{Source: "DNS", Code: "042917", Conditions: []*ententev1.Condition{is("Trusted", "False", "AwaitingApproval")}}, "waiting", "Unknown", "Unknown", false},
		"denied":      {&ententev1.Peer{Source: "LAN", Decision: "Denied", Conditions: []*ententev1.Condition{is("Trusted", "False", "Denied")}}, "Denied", "Unknown", "Unknown", false},
		"by a token":  {&ententev1.Peer{Source: "Token", Conditions: []*ententev1.Condition{is("Trusted", "False", "NotJoined")}}, "False", "Unknown", "Unknown", false},
		"without one": {&ententev1.Peer{Conditions: []*ententev1.Condition{is("Trusted", "True", ""), is("Network", "False", "TunnelNotRequired")}}, "True", "Unknown", "-", false},
		"cordoned": {&ententev1.Peer{Contracts: []*ententev1.Contract{{Phase: "Active", Cordoned: true}}, Conditions: []*ententev1.Condition{
			is("Trusted", "True", ""), is("Offloading", "True", ""), is("Network", "True", ""),
		}}, "True", "Cordoned", "True", false},
		"cordoned, and down": {&ententev1.Peer{Contracts: []*ententev1.Contract{{Phase: "Active", Cordoned: true}}, Conditions: []*ententev1.Condition{
			is("Trusted", "True", ""), is("Offloading", "False", "X"), is("Network", "False", "X"),
		}}, "True", "False", "False", false},
	} {
		p := tc.peer
		if TrustStatus(p) != tc.trust || OffloadingStatus(p) != tc.offloading || NetworkStatus(p) != tc.network || IsHint(p) != tc.hint {
			t.Errorf("%s: %s %s %s, a hint: %t", name, TrustStatus(p), OffloadingStatus(p), NetworkStatus(p), IsHint(p))
		}
	}
	for reason, want := range map[string]bool{
		"PolicyRefused": true, "POLICY_REFUSED": true, "PriceAboveCeiling": true, "TrustDenied": true, "EndedByProvider": true, "CapacityExhausted": true, "RequestInvalid": true,
		"Expired": true, "EndedHere": true,
		"PolicyPending": false, "PeerUnreachable": false,
	} {
		p := &ententev1.Peering{Peer: "peers/office", Accepted: is("Accepted", "False", reason), Generation: 2, AcceptedGeneration: 2}
		if Refused(p) != want || Refused(&ententev1.Peering{Accepted: is("Accepted", "True", reason)}) {
			t.Errorf("waiting changes %s: %t", reason, want)
		}
		if p.AcceptedGeneration = 1; Refused(p) {
			t.Errorf("%s: an earlier request's refusal counts", reason)
		}
	}
	if Refused(&ententev1.Peering{Peer: "peers/-", Accepted: is("Accepted", "False", "CapacityExhausted")}) {
		t.Error("the request to any peer is refused, although another peer may have capacity")
	}
}

func TestARefusalNamesTheSideThatRefuses(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"PriceAboveCeiling": "the price is above the ceiling of this request: no",
		"PolicyRefused":     "the provider refuses: PolicyRefused: no",
		"RequestInvalid":    "the request is not valid: no",
		"Expired":           "the request is over: no",
		"EndedHere":         "the request is over: no",
	} {
		if got := Refusal(&ententev1.Condition{Status: "False", Reason: reason, Message: "no"}); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}

func TestNamesAndTextsAreFormatted(t *testing.T) {
	t.Parallel()
	granted := &ententev1.Peer{Contracts: []*ententev1.Contract{
		{Role: "Consumer", Phase: "Active", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1500m"}}},
		{Role: "Consumer", Phase: "Draining", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "500m"}}},
		{Role: "Consumer", Phase: "Closed", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "9"}}},
		{Role: "Provider", Phase: "Active", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "9"}}},
	}}
	terms := peering.Terms{NotBefore: now, NotAfter: now.Add(time.Hour)}
	seen := func(endpoints ...string) *ententev1.Sighting {
		return &ententev1.Sighting{Source: "LAN", Location: "eth0", Node: "n1", Endpoints: endpoints}
	}
	for name, tc := range map[string]struct{ got, want string }{
		"one collection":                    {Short("peers/milan"), "milan"},
		"two":                               {Short("peers/milan/requests/5f1d"), "milan/5f1d"},
		"none":                              {Short("milan"), "milan"},
		"any peer":                          {ProviderOf(&ententev1.Peering{Peer: "peers/-"}), "any"},
		"any, and one was taken":            {ProviderOf(&ententev1.Peering{Peer: "peers/-", Provider: "peers/milan"}), "milan (of any)"},
		"a named peer":                      {ProviderOf(&ententev1.Peering{Peer: "peers/rome", Provider: "peers/rome"}), "rome"},
		"in force":                          {WhyEnding(&ententev1.Contract{Phase: "Active", Message: "x"}), ""},
		"draining":                          {WhyEnding(&ententev1.Contract{Phase: "Draining", DrainUntil: in(0)}), "draining; drains until 2026-03-01T12:00:00Z"},
		"closed":                            {WhyEnding(&ententev1.Contract{Phase: "Closed", Message: "it expired"}), "it expired"},
		"what is granted now, not what was": {grantedBy(granted), "cpu 2"},
		"nothing granted":                   {grantedBy(&ententev1.Peer{}), ""},
		"not in force yet":                  {validity(terms, now.Add(-1)), "not in force yet"},
		"in time":                           {validity(terms, now), "60m left, unless it was ended"},
		"over":                              {validity(terms, now.Add(2*time.Hour)), "over"},
		"no tunnel":                         {network(false, peering.ExposureOffloaded), "none"},
		"an exposure of another time":       {network(true, "All"), "tunnel; exposure All"},
		"found by a policy":                 {FoundBy(&ententev1.Peer{Source: "Introduction", Labels: map[string]string{"entente.dev/automatic": "home"}, Sightings: []*ententev1.Sighting{seen()}}), "discovery (LAN)"},
		"found by a person":                 {FoundBy(&ententev1.Peer{Source: "Introduction"}), "introduction"},
		"where it was found":                {FoundText(seen()), "LAN eth0 of n1"},
		"several endpoints":                 {EndpointText(seen("a:1", "b:1", "c:1")), "a:1 (and 2 more)"},
		"no endpoint":                       {EndpointText(seen()), ""},
		"a code":                            {Code(&ententev1.Peer{Code: "042917"}), "042 917"},
		"a code of another length":          {Code(&ententev1.Peer{Code: "1234567"}), "1234567"},
		"a message":                         {Why(&ententev1.Condition{Status: "False", Reason: "X", Message: "it is away"}), ": it is away"},
		"nothing to explain":                {Why(is("Trusted", "True", "Joined")), ""},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %q, want %q", name, tc.got, tc.want)
		}
	}
}
