package v1alpha1

import "testing"

func TestWhoIsLeftOut(t *testing.T) {
	t.Parallel()
	var s PeeringRequest
	if s.LeavesOut("office") || s.LeavesOut("") {
		t.Error("somebody is left out of a request that names nobody")
	}
	s.LeaveOut("office")
	s.LeaveOut("office")
	s.LeaveOut("lab")
	if got := s.Annotations[AnnotationLeftOut]; got != "office,lab" {
		t.Errorf("the annotation is %q", got)
	}
	// People write lists as they like.
	s.Annotations[AnnotationLeftOut] = " office, lab ,"
	for name, want := range map[string]bool{"office": true, "lab": true, "off": false, "": false} {
		if s.LeavesOut(name) != want {
			t.Errorf("LeavesOut(%q) = %t", name, !want)
		}
	}
}
