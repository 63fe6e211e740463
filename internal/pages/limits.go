package pages

// pageSize is how many objects are listed at a time.
const pageSize = 250
