package endpoints

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestHintsFollowTheTrafficDistribution(t *testing.T) {
	t.Parallel()
	zone := func(name string) *discoveryv1.EndpointHints {
		return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
	}
	node := func(h *discoveryv1.EndpointHints, name string) *discoveryv1.EndpointHints {
		h.ForNodes = []discoveryv1.ForNode{{Name: name}}
		return h
	}
	for distribution, want := range map[string][]*discoveryv1.EndpointHints{
		"":               {nil, nil, nil, nil},
		"PreferClose":    {zone("a"), nil, nil, nil},
		"PreferSameZone": {zone("a"), nil, nil, nil},
		"PreferSameNode": {node(zone("a"), "n1"), nil, node(&discoveryv1.EndpointHints{}, "n3"), nil},
		"PreferMine":     {nil, nil, nil, nil},
	} {
		t.Run(distribution, func(t *testing.T) {
			t.Parallel()
			ready, not := discoveryv1.EndpointConditions{Ready: new(true)}, discoveryv1.EndpointConditions{Ready: new(false)}
			part := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{
				{Conditions: ready, NodeName: new("n1"), Zone: new("a")},
				{Conditions: not, NodeName: new("n2"), Zone: new("b")},
				{Conditions: ready, NodeName: new("n3")},
				{Conditions: ready}, // in another cluster
			}}
			Hint(part, distribution)
			for i, e := range part.Endpoints {
				if diff := cmp.Diff(want[i], e.Hints); diff != "" {
					t.Errorf("endpoint %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}
