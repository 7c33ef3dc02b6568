"""Landing: from the journals into the lake, each row once."""
