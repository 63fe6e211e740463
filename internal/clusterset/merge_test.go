package clusterset

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

const (
	here  = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	there = peering.ClusterID("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	third = peering.ClusterID("cccccccccccccccccccccccccccccccc")
)

var hello = peering.ServiceName{Namespace: "shop", Name: "hello"}

// exported is a side that exports since a second, with ports as "name:protocol/port".
func exported(cluster peering.ClusterID, since int64, ports string, edit ...func(*peering.ExportedService)) side {
	s := side{cluster: cluster, own: cluster == here, resolve: asIs, service: peering.ExportedService{
		ServiceName: hello, Export: &peering.ServiceExport{Created: time.Unix(since, 0)},
		Service: peering.ServiceObject{SessionAffinity: "None"},
	}}
	end := peering.ServiceEndpoint{Address: "10.0.0." + map[peering.ClusterID]string{here: "1", there: "2", third: "3"}[cluster], Ready: true, Serving: true, Ports: map[string]int32{}}
	for port := range strings.FieldsSeq(ports) {
		var p peering.ServicePort
		name, rest, _ := strings.Cut(port, ":")
		protocol, number, _ := strings.Cut(rest, "/")
		p.Name, p.Protocol = name, protocol
		fmt.Sscan(number, &p.Port)
		s.service.Service.Ports = append(s.service.Service.Ports, p)
		end.Ports[name] = 8000 + p.Port
	}
	s.service.Service.Endpoints = []peering.ServiceEndpoint{end}
	for _, e := range edit {
		e(&s.service)
	}
	return s
}

func text(ports []peering.ServicePort) string {
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s:%s/%d", p.Name, p.Protocol, p.Port))
	}
	return strings.Join(out, " ")
}

func TestClustersThatDifferAreMergedByTheOldest(t *testing.T) {
	t.Parallel()
	headless := func(s *peering.ExportedService) { s.Service.Headless = true }
	sticky := func(seconds int32) func(*peering.ExportedService) {
		return func(s *peering.ExportedService) {
			s.Service.SessionAffinity, s.Service.SessionAffinitySeconds = "ClientIP", seconds
		}
	}
	with := func(edit func(*peering.ServiceExport)) func(*peering.ExportedService) {
		return func(s *peering.ExportedService) { edit(s.Export) }
	}
	for name, test := range map[string]struct {
		sides     []side
		ports     string
		headless  bool
		affinity  string
		conflicts string
	}{
		"one": {[]side{exported(here, 1, "web:TCP/80")}, "web:TCP/80", false, "None", ""},
		"two that are equal": {
			[]side{exported(here, 1, "web:TCP/80 dns:UDP/53"), exported(there, 2, "dns:UDP/53 web:TCP/80")}, "web:TCP/80 dns:UDP/53", false, "None", "",
		},
		"ports are united": {
			[]side{exported(here, 1, "tcp:TCP/42 udp:UDP/42"), exported(there, 2, "tcp:TCP/42 stcp:SCTP/142")},
			"tcp:TCP/42 udp:UDP/42 stcp:SCTP/142", false, "None", "PortConflict",
		},
		"a name for another port is the oldest's": {
			[]side{exported(here, 2, "tcp:TCP/42"), exported(there, 1, "tcp:TCP/43")}, "tcp:TCP/43", false, "None", "PortConflict",
		},
		"a number of another name is the oldest's": {
			[]side{exported(here, 1, "tcp:TCP/42"), exported(there, 2, "web:TCP/42 more:TCP/44")}, "tcp:TCP/42 more:TCP/44", false, "None", "PortConflict",
		},
		"a port without a name stays alone": {
			[]side{exported(here, 1, ":TCP/42"), exported(there, 2, "web:TCP/44")}, ":TCP/42", false, "None", "PortConflict",
		},
		"and comes beside no other": {
			[]side{exported(here, 1, "web:TCP/44"), exported(there, 2, ":TCP/42")}, "web:TCP/44", false, "None", "PortConflict",
		},
		"of the same second the smaller ID is the oldest": {
			[]side{exported(there, 1, "web:TCP/80", headless), exported(here, 1, "web:TCP/80")}, "web:TCP/80", false, "None", "TypeConflict",
		},
		"headless": {[]side{exported(there, 1, "web:TCP/80", headless), exported(here, 3, "web:TCP/80")}, "web:TCP/80", true, "None", "TypeConflict"},
		"sessions": {[]side{exported(there, 1, "web:TCP/80", sticky(10)), exported(here, 3, "web:TCP/80")}, "web:TCP/80", false, "ClientIP", "SessionAffinityConflict"},
		"how long sessions last": {
			[]side{exported(there, 1, "web:TCP/80", sticky(10)), exported(here, 3, "web:TCP/80", sticky(20))}, "web:TCP/80", false, "ClientIP", "SessionAffinityConfigConflict",
		},
		"all else": {
			[]side{exported(here, 1, "web:TCP/80"), exported(there, 2, "web:TCP/80"), exported(third, 3, "web:TCP/80", with(func(x *peering.ServiceExport) {
				x.Labels, x.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
				x.InternalTrafficPolicy, x.TrafficDistribution = "Local", "PreferClose"
			}))},
			"web:TCP/80", false, "None", "LabelsConflict,AnnotationsConflict,InternalTrafficPolicyConflict,TrafficDistributionConflict",
		},
	} {
		// The result does not depend on which cluster is known first: all clusters compute the same.
		for _, sides := range [][]side{test.sides, reversed(test.sides)} {
			sides = slices.Clone(sides)
			order(sides)
			m := merge(sides)
			if text(m.ports) != test.ports || m.headless != test.headless || m.affinity.SessionAffinity != test.affinity || m.reason() != test.conflicts {
				t.Errorf("%s: ports %q headless %t affinity %s conflicts %q", name, text(m.ports), m.headless, m.affinity.SessionAffinity, m.reason())
			}
		}
	}
}

func reversed(sides []side) []side {
	out := slices.Clone(sides)
	slices.Reverse(out)
	return out
}

// What a cluster means by a port that another decided about is not reached, and no cluster's
// endpoints are taken for another's.
func TestPortsAreReachedOnlyWhereTheyAreMeant(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ mine, theirs, want string }{
		"the same":              {"tcp:TCP/42", "tcp:TCP/42", "here tcp=8042; there tcp=8042"},
		"another number":        {"tcp:TCP/42", "tcp:TCP/4242", "here tcp=8042"},
		"another name":          {"tcp:TCP/42", "tcp2:TCP/4242", "here tcp=8042; there tcp2=12242"},
		"one that both have":    {"tcp:TCP/42 udp:UDP/42", "tcp:TCP/42 web:TCP/80", "here tcp=8042 udp=8042; there tcp=8042 web=8080"},
		"without a name beside": {":TCP/42", "web:TCP/80", "here =8042"},
	} {
		p := decide(snapshot{name: hello, shared: true, sides: []side{exported(there, 2, test.theirs), exported(here, 1, test.mine)}})
		var out []string
		for _, s := range p.sides {
			for _, slice := range p.slicesOf(s, p.serviceImport(hello)) {
				words := []string{map[bool]string{true: "here", false: "there"}[s.own]}
				for _, port := range slice.Ports {
					words = append(words, fmt.Sprintf("%s=%d", *port.Name, *port.Port))
				}
				out = append(out, strings.Join(words, " "))
				if slice.Labels[mcs.LabelServiceName] != "hello" || slice.Labels[mcs.LabelSourceCluster] != string(s.cluster) ||
					slice.Labels["kubernetes.io/service-name"] != endpoints.SetName("hello") || slice.Labels["endpointslice.kubernetes.io/managed-by"] != "entente" {
					t.Errorf("%s: labels %v", name, slice.Labels)
				}
			}
		}
		if got := strings.Join(out, "; "); got != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func have(clusters ...peering.ClusterID) *mcs.ServiceImport {
	out := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello", Labels: map[string]string{api.LabelManaged: api.Manager}}}
	out.Spec = mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, IPs: []string{"10.96.0.9"}, Ports: []mcs.ServicePort{{Name: "web", Protocol: "TCP", Port: 80}}}
	for _, c := range clusters {
		out.Status.Clusters = append(out.Status.Clusters, mcs.ClusterStatus{Cluster: string(c)})
	}
	return out
}

// An agent that starts knows nothing of its peers for a while. What they exported stays, with
// its address, until they send otherwise or no policy lets this cluster import from them.
func TestExportsOfAPeerStayUntilItSendsThem(t *testing.T) {
	t.Parallel()
	waiting := map[peering.ClusterID]bool{there: true}
	for name, test := range map[string]struct {
		s        snapshot
		clusters string
		frozen   bool
		ports    string
	}{
		"nothing sent yet":        {snapshot{have: have(there), waiting: waiting}, "b", true, "web:TCP/80"},
		"it no longer exports it": {snapshot{have: have(there)}, "", false, ""},
		"another sends first": {
			snapshot{have: have(here, there), waiting: waiting, sides: []side{exported(here, 1, "web:TCP/80 more:TCP/81")}}, "a b", true, "web:TCP/80",
		},
		"it never exported this": {snapshot{have: have(here), waiting: waiting, sides: []side{exported(here, 1, "web:TCP/80 more:TCP/81")}}, "a", false, "web:TCP/80 more:TCP/81"},
		"sent again":             {snapshot{have: have(here, there), sides: []side{exported(there, 1, "web:TCP/80")}}, "b", false, "web:TCP/80"},
	} {
		test.s.name = hello
		p := decide(test.s)
		var clusters []string
		for _, c := range p.clusters() {
			clusters = append(clusters, c.Cluster[:1])
		}
		if got := strings.Join(clusters, " "); got != test.clusters || p.frozen != test.frozen || text(p.ports) != test.ports {
			t.Errorf("%s: clusters %q frozen %t ports %q", name, got, p.frozen, text(p.ports))
		}
	}
}

// The preference for endpoints is of the exports, and stays with them: the policy's would be another one.
func TestFrozenImportKeepsItsPreference(t *testing.T) {
	t.Parallel()
	own, other := exported(here, 1, "web:TCP/80"), exported(third, 2, "web:TCP/80")
	i := have(here, there, third)
	i.Annotations = map[string]string{api.AnnotationEndpoints: string(api.EndpointsOwnFirst)}
	p := decide(snapshot{name: hello, have: i, waiting: map[peering.ClusterID]bool{there: true}, sides: []side{own, other}})
	if !p.frozen || !p.leadsTo(own) || p.leadsTo(other) {
		t.Errorf("frozen %t, it leads to this cluster %t, to another one %t", p.frozen, p.leadsTo(own), p.leadsTo(other))
	}
}

func TestAnExportHasItsConditions(t *testing.T) {
	t.Parallel()
	export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	service := func(kind corev1.ServiceType) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: kind}}
	}
	mine, theirs := exported(here, 1, "web:TCP/80"), exported(there, 2, "web:TCP/81")
	foreign := have()
	foreign.Labels = nil
	for name, test := range map[string]struct {
		s    snapshot
		want string
	}{
		"all is well":          {snapshot{service: service(""), shared: true, sides: []side{mine}}, "Valid=True/Valid Ready=True/Ready Conflict=False/NoConflicts"},
		"no Service":           {snapshot{shared: true}, "Valid=False/NoService Ready=False/Failed Conflict=False/NoConflicts"},
		"an external name":     {snapshot{service: service(corev1.ServiceTypeExternalName), shared: true}, "Valid=False/InvalidServiceType Ready=False/Failed Conflict=False/NoConflicts"},
		"withheld":             {snapshot{service: service(""), shared: true, invalid: "its owner excludes it"}, "Valid=False/NotExported Ready=False/Failed Conflict=False/NoConflicts"},
		"shared by none":       {snapshot{service: service("")}, "Valid=True/Valid Ready=False/Pending Conflict=False/NoConflicts"},
		"a name that is taken": {snapshot{service: service(""), shared: true, sides: []side{mine}, have: foreign}, "Valid=True/Valid Ready=False/Failed Conflict=False/NoConflicts"},
		"another differs":      {snapshot{service: service(""), shared: true, sides: []side{theirs, mine}}, "Valid=True/Valid Ready=True/Ready Conflict=True/PortConflict"},
	} {
		test.s.name, test.s.export = hello, export
		var out []string
		for _, c := range decide(test.s).conditions {
			out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
			if c.ObservedGeneration != 3 {
				t.Errorf("%s: %s is of generation %d", name, c.Type, c.ObservedGeneration)
			}
		}
		if got := strings.Join(out, " "); got != test.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if p := decide(snapshot{name: hello, sides: []side{mine}, have: foreign}); !p.taken {
		t.Error("another owner's ServiceImport would be written")
	}
}

// Endpoints of some clusters are preferred as long as one is ready, by an annotation or by policy, and all
// of the others stay there to fail over to.
func TestEndpointsOfSomeClustersComeFirst(t *testing.T) {
	t.Parallel()
	says := func(preference string) func(*peering.ExportedService) {
		return func(s *peering.ExportedService) {
			s.Export.Annotations = map[string]string{api.AnnotationEndpoints: preference}
		}
	}
	first, near, all := says("OwnFirst"), says("Nearest"), says("All")
	unready := func(s *peering.ExportedService) { s.Service.Endpoints[0].Ready = false }
	none := func(s *peering.ExportedService) { s.Service.Endpoints = nil }
	headless := func(s *peering.ExportedService) { s.Service.Headless = true }
	// side is a cluster at a distance, with the preference of the policy that selects it.
	at := func(distance int, policy api.EndpointPreference, s side) side {
		s.distance, s.endpoints = distance, policy
		return s
	}
	far := func(s side) side {
		s.resolve = func(peering.ServiceEndpoint) (netip.Addr, bool) { return netip.Addr{}, false }
		return s
	}
	down := func(s side) side { s.down = true; return s }
	own := func(edit ...func(*peering.ExportedService)) side { return exported(here, 1, "web:TCP/80", edit...) }
	b := func(edit ...func(*peering.ExportedService)) side { return exported(there, 2, "web:TCP/80", edit...) }
	c := func(edit ...func(*peering.ExportedService)) side { return exported(third, 3, "web:TCP/80", edit...) }
	const ownFirst, nearest = api.EndpointsOwnFirst, api.EndpointsNearest
	for name, test := range map[string]struct {
		sides []side
		want  string
	}{
		"all by default":                              {[]side{own(), b()}, "a b"},
		"its own":                                     {[]side{own(first), b()}, "a (b)"},
		"of all others none":                          {[]side{own(first), b(), c()}, "a (b) (c)"},
		"its own are not ready":                       {[]side{own(first, unready), b()}, "a b"},
		"it has none":                                 {[]side{own(first, none), b()}, "b"},
		"it does not export it":                       {[]side{b(first), c()}, "b c"},
		"the oldest has none":                         {[]side{exported(there, 1, "web:TCP/80"), exported(here, 2, "web:TCP/80", first)}, "b a"},
		"the oldest has one":                          {[]side{exported(there, 1, "web:TCP/80", first), exported(here, 2, "web:TCP/80")}, "(b) a"},
		"a headless one has names":                    {[]side{own(first, headless), b(headless)}, "(a) (b)"},
		"an unknown preference is ignored":            {[]side{own(says("Mine")), b()}, "a b"},
		"its own by policy":                           {[]side{own(), at(0, ownFirst, b())}, "a (b)"},
		"by the policy of each":                       {[]side{own(), at(0, ownFirst, b()), c()}, "a (b) c"},
		"the export has another one":                  {[]side{own(all), at(0, ownFirst, b())}, "a b"},
		"its own has other ports":                     {[]side{exported(there, 1, "web:TCP/80", first), exported(here, 2, "web:TCP/81")}, "b"},
		"the nearest is its own":                      {[]side{own(near), at(2, "", b()), at(50, "", c())}, "a (b) (c)"},
		"then the next":                               {[]side{own(near, unready), at(2, "", b()), at(50, "", c())}, "a b (c)"},
		"whichever that is":                           {[]side{own(near, none), at(50, "", b()), at(2, "", c())}, "(b) c"},
		"then all that are left":                      {[]side{own(near, unready), at(2, "", b(unready)), at(50, "", c())}, "a b c"},
		"two that are as far":                         {[]side{own(near, unready), at(10, "", b()), at(10, "", c())}, "a b c"},
		"how far is not known":                        {[]side{own(near, unready), at(0, "", b()), at(500, "", c())}, "a (b) c"},
		"of any":                                      {[]side{own(near, unready), at(0, "", b()), at(0, "", c())}, "a b c"},
		"the next is down":                            {[]side{own(near, unready), down(at(2, "", b())), at(50, "", c())}, "a c"},
		"the next is not reached":                     {[]side{own(near, unready), far(at(2, "", b())), at(50, "", c())}, "a c"},
		"the nearest by policy":                       {[]side{own(none), at(2, nearest, b()), at(50, nearest, c())}, "b (c)"},
		"some by policy":                              {[]side{own(none), at(50, nearest, b()), at(2, "", c())}, "(b) c"},
		"some by policy, though a farther one is all": {[]side{own(none), at(2, nearest, b()), at(50, "", c())}, "b c"},
		"none is ready":                               {[]side{own(near, unready), at(2, "", b(unready)), at(50, "", c(unready))}, "a b c"},
	} {
		p := decide(snapshot{name: hello, shared: true, sides: test.sides})
		var out []string
		for _, s := range p.sides {
			for _, slice := range p.slicesOf(s, p.serviceImport(hello)) {
				cluster := string(s.cluster[:1])
				if slice.Labels["kubernetes.io/service-name"] == "" {
					cluster = "(" + cluster + ")"
				}
				out = append(out, cluster)
			}
		}
		if got := strings.Join(out, " "); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// kube-proxy does not see that an EndpointSlice loses its Service, only that it is deleted, and goes on to send to
// its endpoints: one that is used and one that is not have different names.
func TestNoEndpointSliceLosesItsService(t *testing.T) {
	t.Parallel()
	of := map[string]string{}
	for _, preference := range []api.EndpointPreference{api.EndpointsAll, api.EndpointsOwnFirst} {
		peer := exported(there, 2, "web:TCP/80")
		peer.endpoints = preference
		p := decide(snapshot{name: hello, shared: true, sides: []side{exported(here, 1, "web:TCP/80"), peer}})
		for _, s := range p.sides {
			for _, slice := range p.slicesOf(s, p.serviceImport(hello)) {
				service := slice.Labels["kubernetes.io/service-name"]
				if was, known := of[slice.Name]; known && was != service {
					t.Errorf("EndpointSlice %s is of the Service %q, and with %s of %q", slice.Name, was, preference, service)
				}
				of[slice.Name] = service
			}
		}
	}
	if len(of) != 3 {
		t.Errorf("the EndpointSlices are %v, want one of this cluster and two of the other", of)
	}
}

// Whichever endpoints are ready, and whichever preference applies, the address leads to one that is
// ready as long as any is, and to no other while its cluster is preferred.
func TestTheAddressLeadsToWhatIsReady(t *testing.T) {
	t.Parallel()
	preferences := []api.EndpointPreference{"", api.EndpointsAll, api.EndpointsOwnFirst, api.EndpointsNearest}
	distances := []int{0, 2, 10, 10}
	ids := []peering.ClusterID{here, there, third}
	for n := range 4 * 4 * 4 * 4 * 8 {
		at := func(base int) int { d := n % base; n /= base; return d }
		annotation, ready := preferences[at(4)], at(8)
		var sides []side
		for i, id := range ids {
			s := exported(id, int64(i+1), "web:TCP/80", func(s *peering.ExportedService) {
				s.Export.Annotations = map[string]string{api.AnnotationEndpoints: string(annotation)}
				s.Service.Endpoints[0].Ready = ready>>i&1 == 1
			})
			if i > 0 {
				s.distance, s.endpoints = distances[at(4)], preferences[(n+i)%4]
			}
			sides = append(sides, s)
		}
		p := decide(snapshot{name: hello, shared: true, sides: sides})
		used, usable := false, false
		for _, s := range p.sides {
			usable = usable || p.serves(s)
			used = used || p.serves(s) && p.leadsTo(s)
			if s.own && !p.leadsTo(s) {
				t.Fatalf("%v: this cluster's own endpoints are not used", sides)
			}
		}
		if used != usable {
			t.Fatalf("annotation %q, ready %03b: an endpoint is ready (%v) and used (%v)", annotation, ready, usable, used)
		}
	}
}
