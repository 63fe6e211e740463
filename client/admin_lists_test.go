package client

import "testing"

func TestListWithoutEndIsAnError(t *testing.T) {
	asked := 0
	var failed error
	for _, err := range all(func(string) ([]*int, string, error) { asked++; return nil, "more", nil }) {
		failed = err
	}
	if failed == nil || asked != maxPages {
		t.Errorf("after %d pages: %v", asked, failed)
	}
}
