package v1alpha1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLeavingOutNamesEachPeerOnce(t *testing.T) {
	t.Parallel()
	var s PeeringRequest
	if s.Excludes("office") || s.Excludes("") {
		t.Error("a cluster is left out of a request that names none")
	}
	s.Exclude("office")
	s.Exclude("office")
	s.Exclude("lab")
	if got := s.Annotations[AnnotationExcludedClusters]; got != "office,lab" {
		t.Errorf("the annotation is %q", got)
	}
	// Users write lists in different forms.
	s.Annotations[AnnotationExcludedClusters] = " office, lab ,"
	for name, want := range map[string]bool{"office": true, "lab": true, "off": false, "": false} {
		if s.Excludes(name) != want {
			t.Errorf("LeavesOut(%q) = %t", name, !want)
		}
	}
}

// TestDisownKeepsWhatRunsInATrustedCluster takes a cluster over from a policy that
// trusts it, and one that it does not.
func TestDisownKeepsWhatRunsInATrustedCluster(t *testing.T) {
	t.Parallel()
	for bundle, want := range map[string]string{"roots": "home", "": ""} {
		fc := ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{LabelAutomatic: "home", LabelNamespacesOf: "home"}, Annotations: map[string]string{AnnotationAutomaticBy: "FirstUse"}},
			Spec:       ForeignClusterSpec{TrustBundle: bundle},
		}
		fc.TakeFromPolicy()
		if fc.Labels[LabelAutomatic]+fc.Annotations[AnnotationAutomaticBy] != "" || fc.Labels[LabelNamespacesOf] != want {
			t.Errorf("with roots %q: %v", bundle, fc.Labels)
		}
	}
}
