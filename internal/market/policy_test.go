package market

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func TestAutomaticPolicyDecidesAboutItsOwn(t *testing.T) {
	t.Parallel()
	policy := func(name string, edit func(*v1alpha1.PeeringPolicySpec)) Policy {
		p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		edit(&p.Spec)
		return readPolicy(p)
	}
	all := func(*v1alpha1.PeeringPolicySpec) {}
	by := func(d v1alpha1.Direction) func(*v1alpha1.PeeringPolicySpec) {
		return func(s *v1alpha1.PeeringPolicySpec) {
			s.Automatic = &v1alpha1.AutomaticPeering{TrustOnFirstUse: true, Direction: d}
		}
	}
	others := v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "c1"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: "c1", TrustBundle: "roots"},
		Status: v1alpha1.ForeignClusterStatus{Source: v1alpha1.SourceLAN},
	}
	changed := func(fc v1alpha1.ForeignCluster, edit func(*v1alpha1.ForeignCluster)) v1alpha1.ForeignCluster {
		out := fc.DeepCopy()
		edit(out)
		return *out
	}
	ours := changed(others, func(fc *v1alpha1.ForeignCluster) {
		fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelAutomatic: "zebra"}
		fc.Annotations = map[string]string{v1alpha1.AnnotationAutomaticBy: "FirstUse"}
	})
	policies := ReadPolicies([]v1alpha1.PeeringPolicy{
		{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "zebra"}, Spec: v1alpha1.PeeringPolicySpec{Automatic: &v1alpha1.AutomaticPeering{TrustOnFirstUse: true}}},
	})
	for name, tt := range map[string]struct {
		policies []Policy
		fc       v1alpha1.ForeignCluster
		want     string
		accept   peering.Acceptance
	}{
		"whatever names sort like":                     {policies, ours, "zebra", peering.Automatic},
		"others are another's":                         {policies, others, "a", peering.Automatic},
		"none of its own":                              {[]Policy{policy("x", by("Both"))}, ours, "", 0},
		"a policy of direction Consume offers nothing": {[]Policy{policy("zebra", by("Consume")), policy("a", all)}, ours, "zebra", peering.Never},
		"none while it is replaced":                    {[]Policy{policy("a", all)}, ours, "", 0},
		"none once it is another":                      {[]Policy{policy("zebra", all)}, ours, "", 0},
		"a label alone does not count":                 {policies, changed(ours, func(fc *v1alpha1.ForeignCluster) { delete(fc.Annotations, v1alpha1.AnnotationAutomaticBy) }), "a", peering.Automatic},
		"a person's label does not count":              {policies, changed(ours, func(fc *v1alpha1.ForeignCluster) { delete(fc.Labels, v1alpha1.LabelManaged) }), "a", peering.Automatic},
	} {
		if name := Unconfirmed(tt.policies, &tt.fc); name != "" {
			t.Errorf("with its name confirmed %s decides", name)
		}
		got, err := Selecting(tt.policies, &tt.fc)
		switch {
		case tt.want == "" && err == nil:
			t.Errorf("%s: %s decides", name, got.Value.Name)
		case tt.want != "" && (err != nil || got.Value.Name != tt.want || got.Value.Accept != tt.accept):
			t.Errorf("%s: %+v decides: %v", name, got, err)
		}
	}
}
