package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func amounts(pairs ...string) *ententev1.ResourceList {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return &ententev1.ResourceList{Amounts: m}
}

func TestAnUpdateChangesItsFieldsOnly(t *testing.T) {
	t.Parallel()
	base := v1alpha1.PeeringRequestSpec{
		ForeignCluster: "office", Network: v1alpha1.NetworkTunnel, Renewal: v1alpha1.RenewalAutomatic,
		Resources:    corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi")},
		Duration:     &metav1.Duration{Duration: time.Hour},
		PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "0.5"},
		NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"}, Pool: "gpu",
		StorageClasses: []string{"fast"}, RuntimeClasses: []string{"gvisor", "kata"},
	}
	spec := func(f func(*v1alpha1.PeeringRequestSpec)) v1alpha1.PeeringRequestSpec {
		s := *base.DeepCopy()
		f(&s)
		return s
	}
	more := corev1.ResourceList{"cpu": resource.MustParse("8")}
	for name, tc := range map[string]struct {
		to    *ententev1.Peering
		mask  []string
		want  v1alpha1.PeeringRequestSpec
		field string // of the violation, where it is refused
	}{
		"nothing": {to: &ententev1.Peering{Name: "peerings/a"}, want: base},
		"what is set, without a mask": {
			to:   &ententev1.Peering{Name: "peerings/a", Resources: amounts("cpu", "8")},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.Resources = more }),
		},
		"what the mask names, and nothing else that is set": {
			to: &ententev1.Peering{Resources: amounts("cpu", "8"), NoRenewal: true}, mask: []string{"resources"},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.Resources = more }),
		},
		"amounts by the name of the map": {
			to: &ententev1.Peering{Resources: amounts("cpu", "8")}, mask: []string{"resources.amounts"},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.Resources = more }),
		},
		"what the mask names and is not set goes": {
			to: &ententev1.Peering{}, mask: []string{"resources", "duration", "price_ceiling"},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.Resources, s.Duration, s.PriceCeiling = nil, nil, nil }),
		},
		"one half of a price": {
			to: &ententev1.Peering{PriceCeiling: &ententev1.Money{Currency: "USD", Amount: "0.75"}}, mask: []string{"price_ceiling.amount"},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.PriceCeiling.Amount = "0.75" }),
		},
		"by names as JSON has them": {
			to: &ententev1.Peering{PriceCeiling: &ententev1.Money{Currency: "USD", Amount: "2"}, NoRenewal: true}, mask: []string{"priceCeiling", "noRenewal"},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) {
				s.PriceCeiling, s.Renewal = &v1alpha1.Money{Currency: "USD", Amount: "2"}, v1alpha1.RenewalNever
			}),
		},
		"a resource given back": {
			to: &ententev1.Peering{Resources: amounts("cpu", "0")},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) {
				s.Resources = corev1.ResourceList{"cpu": resource.MustParse("0")}
			}),
		},
		"renewal again": {
			to: &ententev1.Peering{NoRenewal: false}, mask: []string{"no_renewal"}, want: base,
		},
		"no tunnel any more": {
			to: &ententev1.Peering{NoNetwork: true}, want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.Network = v1alpha1.NetworkNone }),
		},
		"a tunnel again": {
			to: &ententev1.Peering{NoNetwork: false}, mask: []string{"no_network"}, want: base,
		},
		"everything that can change": {
			to: &ententev1.Peering{Resources: amounts("cpu", "8")}, mask: []string{"*"},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.Resources, s.Duration, s.PriceCeiling = more, nil, nil }),
		},
		"what was read, sent back": {
			to: &ententev1.Peering{
				Name: "peerings/a", Peer: "peers/office", Resources: amounts("cpu", "8"), Contract: "contracts/other", Node: "n", Provider: "peers/x",
				Accepted: &ententev1.Condition{Status: "False"},
			},
			mask: []string{"name", "peer", "resources.amounts", "contract", "node", "provider", "accepted.status", "accepted.lastTransitionTime"},
			want: spec(func(s *v1alpha1.PeeringRequestSpec) { s.Resources = more }),
		},
		"all that was read, sent back":   {to: peeringMessage(&v1alpha1.PeeringRequest{Spec: *base.DeepCopy()}), want: base},
		"another pool":                   {to: &ententev1.Peering{Pool: "spot"}, field: "peering.pool"},
		"another node selector":          {to: &ententev1.Peering{NodeSelector: map[string]string{"kubernetes.io/arch": "amd64"}}, field: "peering.node_selector"},
		"another storage class":          {to: &ententev1.Peering{StorageClasses: []string{"slow"}}, field: "peering.storage_classes"},
		"fewer runtime classes":          {to: &ententev1.Peering{RuntimeClasses: []string{"gvisor"}}, mask: []string{"runtime_classes"}, field: "peering.runtime_classes"},
		"another peer":                   {to: &ententev1.Peering{Peer: "peers/lab"}, field: "peering.peer"},
		"another peer, by mask":          {to: &ententev1.Peering{Peer: "peers/lab"}, mask: []string{"peer"}, field: "peering.peer"},
		"an unknown field":               {to: &ententev1.Peering{}, mask: []string{"resources", "owner"}, field: "update_mask"},
		"an unknown part of a field":     {to: &ententev1.Peering{}, mask: []string{"price_ceiling.tax"}, field: "update_mask"},
		"an entry of a map":              {to: &ententev1.Peering{Resources: amounts("cpu", "8")}, mask: []string{"resources.amounts.cpu"}, field: "update_mask"},
		"a part of a scalar":             {to: &ententev1.Peering{}, mask: []string{"no_renewal.x"}, field: "update_mask"},
		"an empty path":                  {to: &ententev1.Peering{}, mask: []string{""}, field: "update_mask"},
		"an empty part":                  {to: &ententev1.Peering{}, mask: []string{"resources..amounts"}, field: "update_mask"},
		"a star among others":            {to: &ententev1.Peering{}, mask: []string{"*", "duration"}, field: "update_mask"},
		"a star inside":                  {to: &ententev1.Peering{}, mask: []string{"resources.*"}, field: "update_mask"},
		"a path without end":             {to: &ententev1.Peering{}, mask: []string{strings.Repeat("resources.", 10000)}, field: "update_mask"},
		"half a pod":                     {to: &ententev1.Peering{Resources: amounts("pods", "500m")}, field: "peering.resources"},
		"no time":                        {to: &ententev1.Peering{Duration: durationpb.New(0)}, mask: []string{"duration"}, field: "peering.duration"},
		"less than no time":              {to: &ententev1.Peering{Duration: durationpb.New(-time.Second)}, field: "peering.duration"},
		"a price without a currency":     {to: &ententev1.Peering{PriceCeiling: &ententev1.Money{Amount: "1"}}, field: "peering.price_ceiling"},
		"a price whose amount went away": {to: &ententev1.Peering{}, mask: []string{"price_ceiling.amount"}, field: "peering.price_ceiling.amount"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: *base.DeepCopy()}
			var mask *fieldmaskpb.FieldMask
			if tc.mask != nil {
				mask = &fieldmaskpb.FieldMask{Paths: tc.mask}
			}
			err := updateRequest(request, tc.to, mask)
			if tc.field != "" {
				e := wire.FromStatus(err)
				if err == nil || e.Reason != peering.ReasonRequestInvalid || len(e.Violations) != 1 || !strings.HasPrefix(e.Violations[0].Field, tc.field) {
					t.Fatalf("got %v, want a violation of %s", err, tc.field)
				}
				if len(err.Error()) > 300 {
					t.Errorf("the error repeats too much: %d characters", len(err.Error()))
				}
				tc.want = base
			} else if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, request.Spec); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func FuzzUpdateMask(f *testing.F) {
	for _, path := range []string{"", "*", "resources", "resources.amounts", "priceCeiling.amount", "a.b.c", "..", "accepted.status", "resources.amounts.cpu"} {
		f.Add(path, true)
	}
	f.Fuzz(func(t *testing.T, path string, set bool) {
		request := &v1alpha1.PeeringRequest{Spec: v1alpha1.PeeringRequestSpec{ForeignCluster: "office", PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "1"}}}
		to := &ententev1.Peering{}
		if set {
			to = &ententev1.Peering{Peer: "peers/office", Resources: amounts("cpu", "1"), PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "2"}, Contract: "contracts/x"}
		}
		before := request.DeepCopy()
		err := updateRequest(request, to, &fieldmaskpb.FieldMask{Paths: []string{path}})
		if err != nil && wire.ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Fatalf("%q: %v", path, err)
		}
		if request.Spec.ForeignCluster != "office" || err != nil && cmp.Diff(before, request) != "" {
			t.Fatalf("%q: %v changed what it may not", path, err)
		}
	})
}
