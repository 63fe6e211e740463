package v1alpha1

import (
	"slices"
	"strings"
)

// AnnotationExcludedClusters names, separated by commas, the ForeignClusters that a PeeringRequest with a clusterSelector
// does not ask although they match, because an administrator ended the peering with them. Removing a name makes the
// request ask it again.
const AnnotationExcludedClusters = "entente.dev/excluded-clusters"

// Excludes reports whether a PeeringRequest does not ask a ForeignCluster although it matches.
func (s *PeeringRequest) Excludes(foreignCluster string) bool {
	return slices.Contains(s.excluded(), foreignCluster)
}

// Exclude keeps a PeeringRequest from asking a ForeignCluster.
func (s *PeeringRequest) Exclude(foreignCluster string) {
	if s.Excludes(foreignCluster) {
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[AnnotationExcludedClusters] = strings.Join(append(s.excluded(), foreignCluster), ",")
}

func (s *PeeringRequest) excluded() []string {
	return strings.FieldsFunc(s.Annotations[AnnotationExcludedClusters], func(r rune) bool { return r == ',' || r == ' ' })
}
