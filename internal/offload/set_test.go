package offload

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// A Service of the consumer's cluster set has its endpoints, and those of this cluster under their own
// addresses: the consumer's aliases of them lead nowhere here.
func testSetService(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	in := func(cluster, address string) peering.ServiceEndpoint {
		e := end(address, 8080)
		e.Cluster = cluster
		return e
	}
	say := func(o peering.ServiceObject) peering.Object {
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return thing(peering.KindService, name, "clusterset-1", "us", string(b))
	}
	set := service(true, in(string(peerA), "10.1.0.5"), in(string(self), "198.18.0.9"), in("cccccccccccccccccccccccccccccccc", "198.18.0.8"))
	set.SetName = "hello"
	apply(t, p, id, namespaceObject(name, "Suffixed"), say(set))
	got := &corev1.Service{}
	if !c.get(t, remote, "clusterset-1", got) || got.Annotations[api.AnnotationSetName] != "hello" {
		t.Errorf("the Service is %+v", got.ObjectMeta)
	}
	addresses := func() map[string]string {
		var list discoveryv1.EndpointSliceList
		if err := c.owner.List(t.Context(), &list, client.InNamespace(remote)); err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				out[s.Labels[api.LabelSourceCluster]] += strings.Join(e.Addresses, " ")
			}
		}
		return out
	}
	want := map[string]string{string(peerA): "10.241.0.5", string(self): "10.200.0.9"}
	eventually(t, "the endpoints are there", func() bool { return cmp.Equal(want, addresses()) })

	// A Service outside of a cluster set has no such endpoints, even if it lists them.
	set.SetName = ""
	apply(t, p, id, say(set))
	eventually(t, "this cluster's are gone", func() bool {
		return c.get(t, remote, "clusterset-1", got) && got.Annotations[api.AnnotationSetName] == "" && cmp.Equal(map[string]string{string(peerA): "10.241.0.5"}, addresses())
	})
	for text, edit := range map[string]func(*peering.ServiceObject){
		"invalid Service name": func(o *peering.ServiceObject) { o.SetName = "a.b" },
		"its cluster":          func(o *peering.ServiceObject) { o.Endpoints = []peering.ServiceEndpoint{in("../x", "10.1.0.5")} },
		"must not set":         func(o *peering.ServiceObject) { o.ExternalName, o.Ports, o.Endpoints = "example.org", nil, nil },
	} {
		bad := service(true)
		bad.SetName = "hello"
		edit(&bad)
		refused(t, p.Apply(t.Context(), id, say(bad)), peering.RefusedInvalid, false, text)
	}
}
