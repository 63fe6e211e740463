package v1alpha1

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who decided what, for people. It stays in this cluster: nothing of it is sent to peers. Changes that are made with
// kubectl do not change it; their authors are in the API server's audit log.
const (
	// AnnotationDecidedBy is who decided last about trust in a ForeignCluster: "Denied by USER at TIME".
	AnnotationDecidedBy = "entente.dev/decided-by"
	// AnnotationRequestsDecidedBy has a line for each decided request of a ForeignCluster, oldest first:
	// "ID Approved by USER at TIME".
	AnnotationRequestsDecidedBy = "entente.dev/requests-decided-by"
	// AnnotationApprovedBy is who approved the request by which a provider's Contract has its revision:
	// "Approved by USER at TIME". Without an approval there is none.
	AnnotationApprovedBy = "entente.dev/approved-by"
	// AnnotationEndedBy is who asked to end a Contract: "Drain by USER at TIME", or "Now by USER at TIME".
	AnnotationEndedBy = "entente.dev/ended-by"
)

// maxRequestDecisions is how many decided requests a ForeignCluster names with their authors, as many as it has decided
// requests.
const maxRequestDecisions = 64

// DecidedBy returns the text of what a user did.
func DecidedBy(what, user string, at time.Time) string {
	return what + " by " + user + " at " + at.UTC().Format(time.RFC3339)
}

// RequestDecided records who decided about a request.
func (fc *ForeignCluster) RequestDecided(id, text string) {
	lines := slices.DeleteFunc(strings.Split(fc.Annotations[AnnotationRequestsDecidedBy], "\n"), func(l string) bool {
		return l == "" || strings.HasPrefix(l, id+" ")
	})
	lines = append(lines, id+" "+text)
	metav1.SetMetaDataAnnotation(&fc.ObjectMeta, AnnotationRequestsDecidedBy, strings.Join(lines[max(0, len(lines)-maxRequestDecisions):], "\n"))
}

// RequestApproved returns who approved the newest approved request whose ID is one of those wanted; empty if that is
// not known.
func (fc *ForeignCluster) RequestApproved(wanted func(id string) bool) string {
	found := ""
	for line := range strings.SplitSeq(fc.Annotations[AnnotationRequestsDecidedBy], "\n") {
		if id, text, ok := strings.Cut(line, " "); ok && wanted(id) && slices.Contains(fc.Spec.ApprovedRequests, id) {
			found = text
		}
	}
	return found
}
